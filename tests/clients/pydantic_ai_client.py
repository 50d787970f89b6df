"""Pydantic AI before the gateway: the same runs twice, each with a tool that the model calls."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url = sys.argv[1]
openai_provider = OpenAIProvider(base_url=f"{url}/v1", api_key="sk")
anthropic_provider = AnthropicProvider(base_url=url, api_key="sk")
MODELS = {
    "chat": OpenAIChatModel("m", provider=openai_provider),
    "responses": OpenAIResponsesModel("m", provider=openai_provider),
    "messages": AnthropicModel("c", provider=anthropic_provider),
}


def agent_of(name: str) -> Agent:
    agent = Agent(MODELS[name], instructions="Be brief.")

    @agent.tool_plain
    def weather(city: str = "") -> str:
        """Return the weather."""
        return f"sunny in {city}"

    return agent


async def main() -> None:
    for _ in range(2):
        for name in ("chat", "messages"):
            print(name, (await agent_of(name).run("please call the weather")).output)
            async with agent_of(name).run_stream("Which ports?") as streamed:
                print(f"{name}-stream", await streamed.get_output())
        print("responses", (await agent_of("responses").run("Which ports?")).output)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
