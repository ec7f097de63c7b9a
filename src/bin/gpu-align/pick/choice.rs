//! Which cards are the freest: a pure choice over what was seen.

use gpu_align::device::{Device, PciAddress};
use regex_lite::Regex;

use crate::inside::screen::{count, size};

/// A device that could be picked. What is not known is `None`.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub device: Device,
    pub pci: PciAddress,
    pub uuid: String,
    pub model: String,
    pub near: bool,
    /// Compute processes on it.
    pub processes: Option<usize>,
    /// Percent.
    pub load: Option<u32>,
    /// Bytes.
    pub free: Option<u64>,
    /// Bytes, used ones included.
    pub total: Option<u64>,
    /// Whether its compute mode lets no program use it.
    pub prohibited: bool,
}

#[derive(Clone, Debug)]
pub struct Wishes {
    pub number: usize,
    /// Bytes.
    pub min_free: Option<u64>,
    /// Percent.
    pub max_load: Option<u32>,
    pub model: Option<Regex>,
    pub near: bool,
}

/// Why too few cards fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A sentence.
    pub why: String,
    /// Whether waiting cannot help.
    pub for_good: bool,
}

/// Places of the freest candidates that fit; `held` says which UUIDs another
/// picker holds.
///
/// The order: no compute process, then load, then free memory, then PCI. What
/// is not known comes last.
pub fn choose(
    candidates: &[Candidate],
    wishes: &Wishes,
    held: &dyn Fn(&str) -> bool,
) -> Result<Vec<usize>, Refusal> {
    let mut reasons: Vec<(String, usize)> = Vec::new();
    let mut fitting: Vec<usize> = Vec::new();
    let mut possible = candidates.len();
    for (place, candidate) in candidates.iter().enumerate() {
        let never = never_fits(candidate, wishes);
        possible -= usize::from(never.is_some());
        match never.or_else(|| unfit_now(candidate, wishes, held)) {
            None => fitting.push(place),
            Some(reason) => match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, n)) => *n += 1,
                None => reasons.push((reason, 1)),
            },
        }
    }
    if candidates.is_empty() {
        let why = "this process can use no card; ask Slurm for one with --gres=gpu:1".into();
        return Err(Refusal { why, for_good: true });
    }
    if fitting.len() < wishes.number {
        let reasons: Vec<String> = reasons.iter().map(|(why, n)| format!("{n} {why}")).collect();
        let reasons =
            if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
        let for_good = possible < wishes.number;
        let todo = match for_good {
            true => "ask for less, since waiting cannot help",
            false => "ask for less, or wait with --wait 5m",
        };
        let why = format!(
            "{} wanted and {} of {} fit{reasons}; {todo}",
            count(wishes.number, "card"),
            fitting.len(),
            count(candidates.len(), "card"),
        );
        return Err(Refusal { why, for_good });
    }
    fitting.sort_by_key(|&place| {
        let candidate = &candidates[place];
        let busy = candidate.processes.is_none_or(|n| n > 0);
        let load = candidate.load.unwrap_or(u32::MAX);
        (busy, load, std::cmp::Reverse(candidate.free.unwrap_or(0)), candidate.device)
    });
    fitting.truncate(wishes.number);
    // CUDA counts them by bus.
    fitting.sort_by_key(|&place| candidates[place].device);
    Ok(fitting)
}

/// What no waiting changes.
fn never_fits(candidate: &Candidate, wishes: &Wishes) -> Option<String> {
    if candidate.prohibited {
        return Some("in compute mode prohibited".into());
    }
    let other_model = |model: &Regex| !model.is_match(&candidate.model);
    if wishes.model.as_ref().is_some_and(other_model) {
        return Some("of another model".into());
    }
    if wishes.near && !candidate.near {
        return Some("not near this process's CPUs".into());
    }
    match (wishes.min_free, candidate.total) {
        (Some(least), Some(total)) if total < least => {
            Some(format!("with {} of memory in all", size(total)))
        }
        _ => None,
    }
}

fn unfit_now(
    candidate: &Candidate,
    wishes: &Wishes,
    held: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if held(&candidate.uuid) {
        return Some("held by another pick".into());
    }
    match (wishes.min_free, candidate.free) {
        (Some(_), None) => return Some("with unknown free memory".into()),
        (Some(least), Some(free)) if free < least => {
            return Some(format!("with less than {} free", size(least)));
        }
        _ => {}
    }
    match (wishes.max_load, candidate.load) {
        (Some(_), None) => Some("with unknown load".into()),
        (Some(most), Some(load)) if load > most => Some(format!("busier than {most} %")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(rank: usize, processes: usize, load: u32, free_gib: u64) -> Candidate {
        Candidate {
            device: Device::whole(rank),
            pci: format!("0000:{rank:02x}:00.0").parse().unwrap(),
            uuid: format!("GPU-{rank}"),
            model: if rank < 2 { "NVIDIA A100" } else { "NVIDIA T4" }.into(),
            near: rank % 2 == 0,
            processes: Some(processes),
            load: Some(load),
            free: Some(free_gib << 30),
            total: Some(80 << 30),
            prohibited: false,
        }
    }

    fn wish(number: usize) -> Wishes {
        Wishes { number, min_free: None, max_load: None, model: None, near: false }
    }

    fn chosen(cards: &[Candidate], wishes: &Wishes) -> Result<Vec<usize>, String> {
        choose(cards, wishes, &|uuid| uuid == "GPU-9").map_err(|refusal| refusal.why)
    }

    #[test]
    fn processes_then_load_then_memory_then_bus() {
        let cards = [card(0, 1, 0, 80), card(1, 0, 5, 80), card(2, 0, 0, 40), card(3, 0, 0, 60)];
        let order: Vec<_> = (1..=4).map(|n| chosen(&cards, &wish(n)).unwrap()).collect();
        assert_eq!(order, [vec![3], vec![2, 3], vec![1, 2, 3], vec![0, 1, 2, 3]]);
        let alike = [card(0, 0, 0, 80), card(1, 0, 0, 80)];
        assert_eq!(chosen(&alike, &wish(1)), Ok(vec![0]));
    }

    #[test]
    fn wishes_leave_cards_out_and_the_refusal_counts_them() {
        let cards = [card(0, 0, 50, 80), card(1, 0, 0, 10), card(2, 0, 0, 80), card(9, 0, 0, 80)];
        let wishes = Wishes {
            min_free: Some(20 << 30),
            max_load: Some(10),
            model: Some(Regex::new("A100").unwrap()),
            ..wish(1)
        };
        assert_eq!(
            chosen(&cards, &wishes).unwrap_err(),
            "1 card wanted and 0 of 4 cards fit: 1 busier than 10 %, 1 with less than 20 GiB free, \
             2 of another model; ask for less, or wait with --wait 5m"
        );
        assert_eq!(chosen(&cards, &Wishes { near: true, ..wish(2) }), Ok(vec![0, 2]));
        assert!(chosen(&cards, &wish(4)).unwrap_err().contains("1 held by another pick"));
    }

    #[test]
    fn what_is_not_known_comes_last_and_fits_no_limit() {
        let unknown = Candidate { processes: None, load: None, free: None, ..card(0, 0, 0, 0) };
        let cards = [unknown, card(1, 3, 90, 1)];
        assert_eq!(chosen(&cards, &wish(1)), Ok(vec![1]));
        let limited = Wishes { min_free: Some(1), ..wish(2) };
        assert!(chosen(&cards, &limited).unwrap_err().contains("unknown free memory"));
    }

    #[test]
    fn what_waiting_cannot_change_is_told_from_what_it_can() {
        let cards = [card(0, 0, 50, 10), card(9, 0, 0, 80)];
        let for_good = |wishes: Wishes| {
            let refusal = choose(&cards, &wishes, &|uuid| uuid == "GPU-9").unwrap_err();
            assert_eq!(refusal.why.contains("waiting cannot help"), refusal.for_good);
            refusal.for_good
        };
        let nothing = choose(&[], &wish(1), &|_| false).unwrap_err();
        assert!(nothing.for_good && nothing.why.starts_with("this process can use no card"));
        assert!(for_good(wish(3)));
        assert!(!for_good(wish(2)));
        assert!(for_good(Wishes { model: Some(Regex::new("A100").unwrap()), ..wish(2) }));
        assert!(for_good(Wishes { near: true, ..wish(2) }));
        let prohibited = [Candidate { prohibited: true, ..card(0, 0, 0, 80) }, card(1, 1, 9, 9)];
        assert_eq!(chosen(&prohibited, &wish(1)), Ok(vec![1]));
        let why = chosen(&prohibited, &wish(2)).unwrap_err();
        assert!(why.contains("1 in compute mode prohibited; ask for less, since"), "{why}");
        assert!(for_good(Wishes { min_free: Some(81 << 30), ..wish(1) }));
        assert!(!for_good(Wishes { min_free: Some(80 << 30), ..wish(1) }));
        assert!(!for_good(Wishes { max_load: Some(10), ..wish(1) }));
    }
}
