"""The scheduler: where each pod group runs and when. Pure: arrays in, a plan out; no clock, no SQL, no Kubernetes."""
