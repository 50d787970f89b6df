"""A handler for a real TorchServe, in its own environment: numbers of JSON doubled, all else in capitals."""

import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Doubling(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [answer(row.get("body") or row.get("data")) for row in data]


def answer(body):
    if isinstance(body, (bytes, bytearray)):
        body = body.decode()
    if isinstance(body, str) and body.startswith("{"):
        body = json.loads(body)
    if isinstance(body, dict):
        return {"doubled": (2 * torch.tensor(body["values"])).tolist()}
    return str(body).upper()
