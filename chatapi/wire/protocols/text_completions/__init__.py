"""Text completions: `POST /v1/completions`, in the four dialects of chat completions."""
