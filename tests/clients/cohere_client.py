"""Cohere's SDK before the gateway: the same rerankings twice, in both versions of its API."""

import sys

import cohere

url = sys.argv[1]
v1 = cohere.Client(api_key="sk", base_url=url)
v2 = cohere.ClientV2(api_key="sk", base_url=url)
CALL = {"model": "rerank-v3.5", "query": "Which ports?", "documents": ["no idea", "8080 and 9090"], "top_n": 1}
for _ in range(2):
    for name, client in (("v1", v1), ("v2", v2)):
        ranked = client.rerank(**CALL)
        units = ranked.meta.billed_units.search_units
        print(name, [(each.index, each.relevance_score) for each in ranked.results], units)
    print("v1-documents", v1.rerank(**CALL, return_documents=True).results[0].document.text)
