"""A run as XPlane files: device, host and metadata planes, and their check by the real reader."""
