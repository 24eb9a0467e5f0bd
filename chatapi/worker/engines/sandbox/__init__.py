"""The sandbox, an engine without a network: it answers as the model's name and markers in the prompt say."""
