"""Reading XPlane captures piece by piece: files, device planes, host planes, resulting tables."""
