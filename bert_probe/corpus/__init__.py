"""Many sentences, read once into a store of tables that is asked again and again."""
