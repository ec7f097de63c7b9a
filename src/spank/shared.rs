//! Memory that slurmstepd and the tasks it forks share, for as long as a step starts.
//!
//! Made before the fork, written by each task in its own slot, read by all. Nothing waits on it,
//! and nothing read from it is trusted: a length is clamped, bytes are decoded leniently.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The most slots that one node's step can have; more tasks than that share no memory.
const SLOT_LIMIT: usize = 4096;

/// What may lie in shared memory.
///
/// # Safety
/// All-zero bytes must be a valid value, every access through `&Self` must be atomic, and there
/// must be no pointer and nothing to drop. `shared_struct!` makes such types.
pub unsafe trait SharedPlain: Sync {}

// SAFETY: atomics are valid when zero, hold no pointer and need no drop.
unsafe impl SharedPlain for AtomicU8 {}
// SAFETY: as above.
unsafe impl SharedPlain for AtomicU32 {}
// SAFETY: as above.
unsafe impl SharedPlain for AtomicU64 {}
// SAFETY: an array is what its elements are.
unsafe impl<T: SharedPlain, const N: usize> SharedPlain for [T; N] {}

/// Declares a struct of [`SharedPlain`] fields that may itself lie in [`SharedSlots`].
#[macro_export]
macro_rules! shared_struct {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)+ }) => {
        $(#[$meta])*
        #[repr(C)]
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type,)+ }

        #[allow(unsafe_code)]
        // SAFETY: each field is SharedPlain, which the assertion makes the compiler check.
        unsafe impl $crate::spank::SharedPlain for $name {}
        const _: () = {
            const fn plain<T: $crate::spank::SharedPlain>() {}
            $(plain::<$type>();)+
        };
    };
}

/// A text that one process publishes once and others read.
#[repr(C)]
#[derive(Debug)]
pub struct SharedText<const N: usize> {
    length_plus_one: AtomicU32,
    bytes: [AtomicU8; N],
}

// SAFETY: both fields are SharedPlain.
unsafe impl<const N: usize> SharedPlain for SharedText<N> {}

impl<const N: usize> SharedText<N> {
    /// Makes `text` readable, cut at `N` bytes. For the slot's one writer.
    pub fn publish(&self, text: &str) {
        let mut length = 0;
        for (to, from) in self.bytes.iter().zip(text.bytes()) {
            to.store(from, Ordering::Relaxed);
            length += 1;
        }
        self.length_plus_one.store(length + 1, Ordering::Release);
    }

    /// The text, once it was published.
    pub fn read(&self) -> Option<String> {
        let length = self.length_plus_one.load(Ordering::Acquire).checked_sub(1)?;
        let length = usize::try_from(length).map_or(N, |length| length.min(N));
        let bytes: Vec<u8> =
            self.bytes[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// `n` zeroed values in an anonymous mapping that forked children share with their parent.
#[derive(Debug)]
pub struct SharedSlots<T: SharedPlain> {
    slots: NonNull<T>,
    count: usize,
}

// SAFETY: the mapping belongs to the value, and all access is through `&T`, which is Sync.
unsafe impl<T: SharedPlain> Send for SharedSlots<T> {}
// SAFETY: as above.
unsafe impl<T: SharedPlain> Sync for SharedSlots<T> {}

impl<T: SharedPlain> SharedSlots<T> {
    /// Maps `count` slots (1 to 4096), all zero.
    pub fn new(count: usize) -> io::Result<Self> {
        if count == 0 || count > SLOT_LIMIT || size_of::<T>() == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{count} shared slots were asked for; 1 to {SLOT_LIMIT} are possible"),
            ));
        }
        const { assert!(align_of::<T>() <= 4096) };
        // SAFETY: a fresh anonymous mapping, aliasing nothing; mmap refuses a size that is too
        // large, and `bytes` does not wrap.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::bytes(count),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let slots = NonNull::new(address.cast::<T>()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { slots, count })
    }

    fn bytes(count: usize) -> usize {
        count.saturating_mul(size_of::<T>())
    }
}

impl<T: SharedPlain> Deref for SharedSlots<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `count` values of T, page-aligned, all-zero at first (valid by
        // SharedPlain), changed only atomically, and lives until drop.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), self.count) }
    }
}

impl<T: SharedPlain> Drop for SharedSlots<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), Self::bytes(self.count)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    shared_struct! {
        struct Slot {
            number: AtomicU32,
            text: SharedText<8>,
        }
    }

    #[test]
    fn what_a_child_publishes_the_parent_reads() {
        let slots = SharedSlots::<Slot>::new(2).expect("a mapping");
        assert_eq!(slots[1].text.read(), None);
        // SAFETY: the child only stores to shared memory and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            slots[1].number.store(42, Ordering::Relaxed);
            slots[1].text.publish("card 3 and more");
            // SAFETY: no destructor of the test runner may run in the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `child` is our own child, waited for once.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(slots[1].text.read().as_deref(), Some("card 3 a"));
        assert_eq!(slots[1].number.load(Ordering::Relaxed), 42);
        assert_eq!(slots[0].text.read(), None);
    }

    #[test]
    fn a_length_that_lies_is_clamped() {
        let slots = SharedSlots::<SharedText<4>>::new(1).expect("a mapping");
        slots[0].publish("\u{e9}\u{e9}\u{e9}");
        slots[0].length_plus_one.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(slots[0].read().as_deref(), Some("\u{e9}\u{e9}"));
    }

    #[test]
    fn the_number_of_slots_is_bounded() {
        assert!(SharedSlots::<AtomicU32>::new(0).is_err());
        assert!(SharedSlots::<AtomicU32>::new(SLOT_LIMIT + 1).is_err());
        assert_eq!(SharedSlots::<AtomicU32>::new(SLOT_LIMIT).expect("a mapping").len(), SLOT_LIMIT);
    }
}
