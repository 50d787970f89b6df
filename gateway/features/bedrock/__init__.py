"""Backends that speak Converse, the protocol of Amazon Bedrock for all its models.

Sources: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, and the description of the
service in botocore (`bedrock-runtime`, 2023-09-30). Its blocks are close to those of Anthropic's messages, so the
translation goes over them.
"""
