"""`nearhit eval`: how often the policy chooses the expected tier or backend."""
