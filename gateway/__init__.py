"""nearhit: a semantic response cache and adaptive routing gateway for model endpoints."""
