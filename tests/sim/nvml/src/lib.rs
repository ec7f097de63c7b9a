//! A stand-in for `libnvidia-ml.so.1`: NVML over a simulated node.
//!
//! gpu-align's helper takes stock of a node through NVML, and NVML is what
//! fails in the field: no driver, another driver than the library's, a card off
//! the bus, an init that never comes back. This library answers from the node
//! file ([`sim_node::Node`]) and has those faults on demand. It lists only the
//! cards that its process may open, as NVML does inside a job's cgroup.
//!
//! Where NVML's manual leaves open what a call answers for a slice, the
//! stand-in refuses: a helper that gets along with it asks the parent card.

mod abi;
mod cards;
mod library;
mod slices;
mod state;
