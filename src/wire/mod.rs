//! What travels between a client and the gateway: messages and their framing.

/// Four bytes of length, then the message.
pub mod frame;

/// What a gateway reads, cut into frames.
pub mod input;

#[cfg(test)]
mod vectors;

include!(concat!(env!("OUT_DIR"), "/hongbao.v1.rs"));
