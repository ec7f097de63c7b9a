//! One file for every Slurm release from 21.08 to 26.05.
//!
//! Since 22.05 Slurm refuses a plugin whose `plugin_version` differs from its own in major or
//! minor. It reads the number after dlopen, so after this file's constructors, and Slurm's own
//! `slurm_api_version()` tells which release is running. A release that the table does not know
//! keeps the number of the header that the file was built with: Slurm then refuses, and says why,
//! rather than running hooks that nobody tried there.

use std::ffi::{CStr, c_long};
use std::sync::atomic::{AtomicU32, Ordering};

use super::bindings::SLURM_VERSION_NUMBER;
use super::calls::Call;

/// The version that Slurm compares with its own: `major << 16 | minor << 8 | micro`.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: AtomicU32 = AtomicU32::new(SLURM_VERSION_NUMBER);

/// Slurm's API number (`slurm_api_version() >> 16`) and the release that has it.
const RELEASES: [(c_long, u32, u32); 9] = [
    (37, 21, 8),
    (38, 22, 5),
    (39, 23, 2),
    (40, 23, 11),
    (41, 24, 5),
    (42, 24, 11),
    (43, 25, 5),
    (44, 25, 11),
    (45, 26, 5),
];

/// The `plugin_version` that the Slurm with this `slurm_api_version()` accepts.
///
/// The number is `current << 16 | age << 8 | revision`; only `current` tells releases apart. The
/// micro release is left 0: Slurm compares major and minor only for SPANK plugins (22.05 and
/// newer), or nothing at all (21.08).
fn version_for(api_version: c_long) -> Option<u32> {
    let current = api_version >> 16;
    RELEASES
        .iter()
        .find(|(number, ..)| *number == current)
        .map(|(_, major, minor)| major << 16 | minor << 8)
}

/// Whether the plugin file loads in this Slurm, like (24, 11).
pub fn supports(major: u32, minor: u32) -> bool {
    RELEASES.iter().any(|&(_, a, b)| (a, b) == (major, minor))
}

// Not in spank.h but in slurm.h, unchanged in every release: `extern long slurm_api_version(void)`.
const API_VERSION: &CStr = c"slurm_api_version";

extern "C" fn take_running_version() {
    // SAFETY: this is the prototype in slurm.h.
    let call: Call<unsafe extern "C" fn() -> c_long> = unsafe { Call::new(API_VERSION) };
    let Ok(api_version) = call.get() else {
        return;
    };
    // SAFETY: the function takes nothing and returns a constant.
    if let Some(version) = version_for(unsafe { api_version() }) {
        plugin_version.store(version, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = take_running_version;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_gets_its_own_number() {
        // What the libraries of these releases answer, and their SLURM_VERSION_NUMBER masked as
        // Slurm masks it for SPANK plugins.
        for (api_version, expected) in [
            (0x25_0000, 0x15_0800), // 21.08
            (0x26_0000, 0x16_0500), // 22.05
            (0x27_0000, 0x17_0200), // 23.02
            (0x28_0000, 0x17_0b00), // 23.11
            (0x29_0000, 0x18_0500), // 24.05
            (0x2a_0000, 0x18_0b00), // 24.11
            (0x2b_0000, 0x19_0500), // 25.05
            (0x2c_0000, 0x19_0b00), // 25.11
            (0x2d_0000, 0x1a_0500), // 26.05
        ] {
            assert_eq!(version_for(api_version), Some(expected), "{api_version:#x}");
        }
    }

    #[test]
    fn what_the_table_knows_is_supported() {
        assert!(supports(21, 8) && supports(26, 5));
        assert!(!supports(20, 11) && !supports(26, 11));
    }

    #[test]
    fn age_and_revision_do_not_matter() {
        assert_eq!(version_for(0x26_0102), Some(0x16_0500));
    }

    #[test]
    fn an_unknown_release_is_left_to_slurm_to_refuse() {
        for api_version in [0, -1, 36 << 16, 46 << 16, c_long::MAX, c_long::MIN] {
            assert_eq!(version_for(api_version), None, "{api_version:#x}");
        }
    }

    #[test]
    fn the_header_this_was_built_with_is_one_of_them() {
        let built = SLURM_VERSION_NUMBER & 0xffff00;
        assert!(RELEASES.iter().any(|(_, major, minor)| major << 16 | minor << 8 == built));
    }
}
