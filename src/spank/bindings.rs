//! What bindgen made of `slurm/spank.h` (see build.rs), unchanged.
//!
//! The functions in here are prototypes to check our own against; none is ever linked to:
//! [`super::calls`] looks each one up in the running program.

#![allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::pedantic
)]

include!(concat!(env!("OUT_DIR"), "/spank.rs"));
