"""The layout of the memory that a child shares with the broker."""

import struct

# Bytes of the value, bytes of it stored; of the last cell: whether it has begun, and then its
# process' CPU clock and the monotonic clock, in seconds.
HEADER = struct.Struct("<II?dd")
