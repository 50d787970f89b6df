"""The screen: questions that nothing stored resembles go to their backend before they are embedded."""
