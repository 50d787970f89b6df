"""`nearhit cache warm`: prompts are sent through the gateway, so that it stores their answers."""
