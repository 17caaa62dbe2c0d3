"""The small per-row operations between the linears: RMSNorm with residual, rotary embedding, SiLU gate."""
