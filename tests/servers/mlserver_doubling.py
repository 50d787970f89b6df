"""A runtime for a real MLServer, in its own environment: numbers doubled, texts in capitals."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Doubling(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = []
        for each in payload.inputs:
            if each.datatype == "BYTES":
                said = [text.upper() for text in StringCodec.decode_input(each)]
                outputs.append(StringCodec.encode_output("said", said))
            else:
                outputs.append(NumpyCodec.encode_output("doubled", 2 * NumpyCodec.decode_input(each)))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
