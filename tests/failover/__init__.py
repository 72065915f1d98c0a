"""A primary that is lost and a standby that takes over; servers whose clocks step."""
