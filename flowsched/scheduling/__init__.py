"""Where each gang runs and when. Pure: arrays in, a plan out; no clock, no SQL, no Kubernetes."""
