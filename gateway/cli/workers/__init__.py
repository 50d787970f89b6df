"""Several processes behind one address: `server.workers`, `nearhit restart`."""
