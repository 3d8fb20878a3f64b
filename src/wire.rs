//! The messages of `proto/hongbao.proto`, generated at build time. Framing is in `gateway::frame`.

include!(concat!(env!("OUT_DIR"), "/hongbao.v1.rs"));
