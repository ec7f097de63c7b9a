//! What this node has. Read without waking a card, but for [`nvml`], which only
//! the helper program uses.

pub mod capabilities;
pub mod child;
pub mod driver;
pub mod gather;
#[cfg(feature = "program")]
pub mod nvml;
pub mod record;
#[cfg(feature = "program")]
pub mod stock;
pub mod text;
pub mod topology;
