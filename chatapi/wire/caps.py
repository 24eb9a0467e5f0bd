"""The limits of what one request may carry; what is over a cap is a 400 that names the parameter.

Where OpenAI's reference names a limit it is OpenAI's; the others keep time and memory bounded. The body as a
whole is capped by the server before it is read (413).
"""

from typing import Final

# The JSON text
MAX_DEPTH: Final = 64
"""Nested arrays and objects."""
MAX_VALUES: Final = 262_144
"""Values in the whole body (413): an empty array is 2 bytes on the wire and 64 in memory."""
MAX_DIGITS: Final = 400
"""Of a number in a body of more than MAX_VALUES bytes; the largest float has 309."""
MAX_EXPONENTS: Final = 256
"""Numbers whose exponent has three or more digits: to read one takes a hundred times as long as any other
number.
"""
MAX_NAMES_COMPARED: Final = 2_048
"""Names in a body in which one is doubled, if the refusal is to say which."""

# Chat
MAX_MESSAGES: Final = 2_048
MAX_CONTENT_PARTS: Final = 2_048
"""Of one message."""
MAX_TOOL_CALLS: Final = 128
"""Of one assistant message."""
MAX_TOOLS: Final = 128
"""OpenAI's, for functions too."""
MAX_PART_DATA_CHARS: Final = 4 * 1024 * 1024
"""A picture's `data:` URL, and base64 of a sound or a file: 3 MiB of content."""

# Text
MAX_PROMPTS: Final = 128
MAX_SUFFIX_CHARS: Final = 65_536

# Embeddings
MAX_INPUTS: Final = 2_048
"""OpenAI's."""
MAX_DIMENSIONS: Final = 8_192
"""The longest vectors of any model that we know have half as many."""
USUAL_DIMENSIONS: Final = 1_536
"""OpenAI's."""
MAX_VECTOR_VALUES: Final = MAX_INPUTS * USUAL_DIMENSIONS
"""Numbers in one answer: 12 MiB."""

# Chat and text
MAX_CHOICES: Final = 128
"""OpenAI's for `n`; for text it holds for `n` (or `best_of`) times the number of prompts."""
MAX_OUTPUT_TOKENS: Final = 2**31 - 1
"""What fits an engine's 32-bit integer; a model's own limit is lower and applied later."""
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_STOP_SEQUENCES: Final = 4
MAX_STOP_CHARS: Final = 512
MAX_LOGIT_BIASES: Final = 1_024
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
MAX_NAME_CHARS: Final = 64
"""Names of participants, tools and schemas."""
MAX_ID_CHARS: Final = 256
"""Ids that other servers gave: tool calls, files, sounds."""
MAX_USER_CHARS: Final = 512
MAX_SAFETY_IDENTIFIER_CHARS: Final = 128
MAX_CACHE_KEY_CHARS: Final = 512
MAX_DESCRIPTION_CHARS: Final = 65_536

# Responses
MAX_STATE_BYTES: Final = 1 << 20
"""Of the items that are kept for later requests; a response with more is not stored."""
MAX_ECHO_BYTES: Final = 32_768
"""Of instructions, tools or a format, as JSON, that a response object repeats: larger ones are left out."""

# What is not OpenAI's
MAX_EXTRA_BYTES: Final = 65_536
"""One engine parameter, as JSON."""
MAX_IGNORED: Final = 64
"""Unknown parameters of one request."""
