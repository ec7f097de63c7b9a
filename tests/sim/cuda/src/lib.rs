//! A stand-in for `libcuda.so.1`: which cards a process would get, without a card.
//!
//! gpu-align's one promise is that the card in the log is the card that CUDA
//! opens. This library is CUDA's side of that promise on machines without a
//! GPU: it answers from the simulated node ([`sim_node::Node`]) and follows the
//! driver in who may open what, in which order, and in how it reads
//! CUDA_VISIBLE_DEVICES. [`enumerate()`] holds those rules, pure, for tests that
//! want the driver's reading of a value; `exports` dresses them as the C
//! functions that programs look for.
//!
//! The simulated cards enumerate; they do not compute.

mod enumerate;
mod error;
mod exports;
mod visible;

pub use enumerate::{Entry, enumerate};
pub use error::CudaError;
