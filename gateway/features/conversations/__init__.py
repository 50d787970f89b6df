"""Conversations: after a semantic hit, a conversation goes on as the one whose answer was served."""
