"""Chat completions: `POST /v1/chat/completions`, in four dialects."""
