"""The limits of a request's content; a request over one gets a 400 that names the parameter.

Limits that OpenAI's reference names are OpenAI's; the others bound time and memory. The server checks the
size of the whole body before it reads it (413).
"""

from typing import Final

# ---- the JSON text

# Levels of nested arrays and objects.
MAX_DEPTH: Final = 64
# Values in the whole body (413): an empty array is 2 bytes on the wire and 64 in memory.
MAX_VALUES: Final = 262_144
# Digits of a number in a body of more than MAX_VALUES bytes; the largest float has 309.
MAX_DIGITS: Final = 400
# Numbers whose exponent has three or more digits: reading one takes a hundred times as long as another.
MAX_EXPONENTS: Final = 256
# A name that occurs twice is a 400, which does not say which one in a body with more names than this.
MAX_NAMES_COMPARED: Final = 2_048

# ---- chat completions

MAX_MESSAGES: Final = 2_048
# In one message.
MAX_CONTENT_PARTS: Final = 2_048
# In one assistant message, and in one choice of an answer: each call takes memory until the choice's end.
MAX_TOOL_CALLS: Final = 1_024
# OpenAI's limit, for functions too.
MAX_TOOLS: Final = 128
# In Messages and Responses: agents with several MCP servers send 200 tools and more.
MAX_AGENT_TOOLS: Final = 1_024
# Anthropic's limit for a picture, up to which Claude Code shrinks its own: 3.75 MiB of content.
MAX_BASE64_CHARS: Final = 5 * 1024 * 1024
# A picture's `data:` URL, and base64 of a sound or a file, with room for the prefix of the data.
MAX_PART_DATA_CHARS: Final = MAX_BASE64_CHARS + 64

# ---- text completions

MAX_PROMPTS: Final = 128
MAX_SUFFIX_CHARS: Final = 65_536

# ---- embeddings

# OpenAI's limit.
MAX_INPUTS: Final = 2_048
# The longest vectors of any model that we know have half as many.
MAX_DIMENSIONS: Final = 8_192
# Those of OpenAI's text-embedding-3-small.
USUAL_DIMENSIONS: Final = 1_536
# Numbers in one answer: 12 MiB.
MAX_VECTOR_VALUES: Final = MAX_INPUTS * USUAL_DIMENSIONS

# ---- all of these

# OpenAI's limit of `n`; for text completions, of `n` (or `best_of`) times the number of prompts.
MAX_CHOICES: Final = 128
# The largest 32-bit integer, for engines; a model's own limit is lower and applied later.
MAX_OUTPUT_TOKENS: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**31 - 1
# OpenAI's limit; Anthropic names none.
MAX_STOP_SEQUENCES: Final = 4
MAX_MESSAGES_STOP_SEQUENCES: Final = 32
MAX_STOP_CHARS: Final = 512
MAX_LOGIT_BIASES: Final = 1_024
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512
# Names of participants, tools and schemas.
MAX_NAME_CHARS: Final = 64
# Ids that other servers have given to tool calls, files and sounds.
MAX_ID_CHARS: Final = 256
MAX_USER_CHARS: Final = 512
# OpenAI's limit since 2026; it was 64.
MAX_SAFETY_IDENTIFIER_CHARS: Final = 128
MAX_CACHE_KEY_CHARS: Final = 512
MAX_DESCRIPTION_CHARS: Final = 65_536

# ---- Responses

# The items that are kept for later requests; a response with more is not stored.
MAX_STATE_BYTES: Final = 1 << 20
# The instructions, tools or format, as JSON, that a response object repeats: larger ones are left out.
MAX_ECHO_BYTES: Final = 32_768

# ---- parameters that OpenAI does not have

# One engine parameter, as JSON.
MAX_EXTRA_BYTES: Final = 65_536
# Unknown parameters of one request.
MAX_IGNORED: Final = 64
# Other models that may answer.
MAX_FALLBACKS: Final = 8
