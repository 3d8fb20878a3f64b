//! The end of a gateway, and moving to another.
