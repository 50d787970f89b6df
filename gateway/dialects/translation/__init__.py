"""Translation of calls for backends of other dialects, over one neutral form: OpenAI's chat. Pure.

A dialect translates to the neutral form and from it. Fields that the other side cannot express are refused if they
would change the response, and left out otherwise. docs/protocols.md lists both.
"""
