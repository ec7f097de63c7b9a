//! What one hook leaves for the next, in a place that a panic cannot poison.

use std::sync::{Mutex, PoisonError, TryLockError};

/// A process-wide value for the hooks.
///
/// Slurm calls hooks one at a time on its main thread, so the lock is never waited for: [`with`]
/// answers `None` when it is called inside itself, instead of hanging slurmstepd.
///
/// [`with`]: StateCell::with
pub struct StateCell<T>(Mutex<T>);

impl<T> StateCell<T> {
    /// A cell that holds `value` until a hook changes it.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Lets `work` read and change the value. A panic in `work` leaves what was written up to
    /// then, and the cell usable.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = match self.0.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(work(&mut value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_inside_does_not_spoil_the_next_use() {
        let cell = StateCell::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cell.with(|value| {
                *value = 2;
                std::panic::resume_unwind(Box::new("test"));
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(cell.with(|value| *value), Some(2));
    }

    #[test]
    fn a_use_inside_a_use_is_refused_instead_of_hanging() {
        let cell = StateCell::new(1);
        assert_eq!(cell.with(|_| cell.with(|value| *value)), Some(None));
    }
}
