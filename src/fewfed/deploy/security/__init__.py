"""Who is who in a federation: keys, certificates, signed envelopes, what was seen before, and who misbehaved."""

from fewfed.errors import ConfigError

try:
    import cryptography  # noqa: F401
except ImportError as error:
    raise ConfigError(
        "keys and signatures need the package 'cryptography', which is not installed: run pip install 'fewfed[flower]'"
    ) from error
