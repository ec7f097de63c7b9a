//! What this node has, read without waking a card.

pub mod driver;
pub mod text;
pub mod topology;
