"""Who answers a miss: decided, asked, checked, compared."""
