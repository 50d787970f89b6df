"""Azure's forms of OpenAI's protocol, for clients and for backends.

The body is OpenAI's. The path names the deployment, which is the model, or has a prefix before `/v1`. The query names
the version of the API. See https://learn.microsoft.com/azure/ai-foundry/openai/reference.
"""
