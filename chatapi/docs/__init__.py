"""/docs: guides for developers, from docs/*.md, and the API's reference, from the OpenAPI document."""
