"""The store on Redis or Valkey, embedded or outside."""
