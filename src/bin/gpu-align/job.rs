//! A job's cards on this node by all their names, for monitoring that sees a
//! UUID or an NVML index and wants the job.
//!
//! The positions in `SLURM_JOB_GPUS` are looked up in the gres list; full UUIDs
//! in `CUDA_VISIBLE_DEVICES` (25.11 and later, under AutoDetect) go before them.
//! Invariant: a card that is not known for sure is in `unknown`, not in `cards`.

use gpu_align::device::{Device, Minor, PciAddress, Slice, Uuid, clip};
use gpu_align::slurm::step::numbers;
use serde::Serialize;

use crate::drain::{Drain, Problem};
use crate::numbering::{Meaning, Numbering};

/// The file `/run/gpu-align/jobs/<jobid>.json`.
#[derive(Debug, Serialize)]
pub struct JobRecord {
    /// 1. Another number is another shape.
    pub schema: u32,
    pub job: String,
    pub node: String,
    /// The variable that named the cards.
    pub source: Option<&'static str>,
    pub cards: Vec<JobCard>,
    /// Positions whose card is not there or cannot be told.
    pub unknown: Vec<u32>,
}

/// A card, or a slice of it, that the job holds.
#[derive(Debug, Serialize)]
pub struct JobCard {
    /// Slurm's number; null where it is not known.
    pub position: Option<u32>,
    /// nvidia-smi's index on the host.
    pub rank: usize,
    pub minor: Minor,
    pub pci: PciAddress,
    /// The slice's own where there is one.
    pub uuid: Option<Uuid>,
    pub model: String,
    /// null for a whole card.
    pub slice: Option<Slice>,
}

impl JobRecord {
    /// Resolves a job's variables.
    pub fn of(
        job: String,
        node: String,
        env: impl Fn(&str) -> Option<String>,
        numbering: &Numbering,
        problems: &mut Vec<Problem>,
    ) -> JobRecord {
        let list = env("SLURM_JOB_GPUS").filter(|list| !list.is_empty());
        let positions = list.as_deref().and_then(numbers);
        let names = env("CUDA_VISIBLE_DEVICES").as_deref().and_then(uuids);
        if let (Some(list), None, None) = (&list, &positions, &names) {
            let list = clip(list);
            let line = format!(
                "job {job}: SLURM_JOB_GPUS is '{list}', no list of numbers, so the job's record has \
                 no cards; look for what sets it before the Prolog"
            );
            problems.push(Problem::new(Drain::Other, line));
        }
        let by_position: Vec<(u32, Meaning)> =
            positions.iter().flatten().map(|&p| (p, numbering.meaning(p))).collect();
        let inventory = numbering.inventory();
        let by_name = names.map(|names| {
            let device = |uuid: Uuid| (inventory.device_of_uuid(&uuid), uuid);
            names.into_iter().map(device).collect::<Vec<_>>()
        });
        let known = |meaning: Meaning| match meaning {
            Meaning::Device(device) => Some(device),
            Meaning::Gone(_) | Meaning::Nothing | Meaning::Unknown => None,
        };
        let unknown: Vec<u32> =
            by_position.iter().filter(|(_, m)| known(*m).is_none()).map(|(p, _)| *p).collect();
        for (position, meaning) in &by_position {
            let (kind, why) = match meaning {
                Meaning::Device(_) => continue,
                // The UUIDs tell.
                Meaning::Unknown if by_name.is_some() => continue,
                Meaning::Unknown => (
                    Drain::Other,
                    "may be any card, so the job's record has none for it; run gpu-align check"
                        .to_owned(),
                ),
                Meaning::Gone(pci) => (
                    Drain::Missing,
                    format!("is card {pci}, which is gone; look for Xid in the kernel log"),
                ),
                Meaning::Nothing => (
                    Drain::Missing,
                    "names no card of this node; compare gres.conf with nvidia-smi".to_owned(),
                ),
            };
            let line = format!("job {job}: Slurm's position {position} {why}");
            problems.push(Problem::new(kind, line));
        }
        let position_of = |device: Device| {
            let is_here = |(_, meaning): &&(u32, Meaning)| *meaning == Meaning::Device(device);
            by_position.iter().find(is_here).map(|(position, _)| *position)
        };
        let told = by_position.iter().all(|(_, meaning)| *meaning != Meaning::Unknown);
        let (source, devices) = match &by_name {
            Some(names) => {
                for (device, uuid) in names {
                    let problem = match device {
                        None => "names no card of this node",
                        Some(d) if positions.is_some() && told && position_of(*d).is_none() => {
                            "is not what gres.conf says of SLURM_JOB_GPUS; the UUID is believed"
                        }
                        Some(_) => continue,
                    };
                    problems.push(Problem::new(
                        Drain::Difference,
                        format!("job {job}: {uuid} in CUDA_VISIBLE_DEVICES {problem}"),
                    ));
                }
                let devices = names.iter().filter_map(|(device, _)| *device).collect();
                (Some("CUDA_VISIBLE_DEVICES"), devices)
            }
            None => {
                let devices: Vec<Device> =
                    by_position.iter().filter_map(|(_, meaning)| known(*meaning)).collect();
                (positions.as_ref().map(|_| "SLURM_JOB_GPUS"), devices)
            }
        };
        let cards = devices
            .into_iter()
            .map(|device| {
                let card = inventory.card(device);
                JobCard {
                    position: position_of(device),
                    rank: device.card,
                    minor: card.minor,
                    pci: card.pci,
                    uuid: inventory.uuid(device).cloned(),
                    model: card.model.clone(),
                    slice: inventory.slice(device).cloned(),
                }
            })
            .collect();
        JobRecord { schema: 1, job, node, source, cards, unknown }
    }
}

/// A list of full UUIDs; `None` for anything else, numbers included.
fn uuids(list: &str) -> Option<Vec<Uuid>> {
    const MAX: usize = 1024;
    list.split(',').take(MAX).map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use gpu_align::device::{Card, Inventory};
    use gpu_align::slurm::gres_list::GresList;

    use crate::numbering::Cards;

    /// INV8P of the field cases.
    pub fn inv8p() -> Inventory {
        let card = |(rank, minor): (usize, u32)| Card {
            pci: format!("0000:{:02x}:00.0", 0x20 * rank + 1).parse().unwrap(),
            minor: Minor(minor),
            uuid: format!("GPU-00000000-0008-4000-8000-00000000000{rank}").parse().ok(),
            model: "A".into(),
            numa: None,
            slices: Vec::new(),
        };
        Inventory::new([4, 5, 6, 7, 2, 3, 0, 1].into_iter().enumerate().map(card).collect())
    }

    fn whole(inventory: Inventory) -> Cards {
        Cards { inventory, gone: Vec::new(), slices_known: true }
    }

    fn resolved(env: &[(&str, &str)], constrained: bool) -> (JobRecord, Vec<String>) {
        resolved_on(&inv8p(), "Name=gpu File=/dev/nvidia[0-7]", env, constrained)
    }

    fn resolved_on(
        inventory: &Inventory,
        gres: &str,
        env: &[(&str, &str)],
        constrained: bool,
    ) -> (JobRecord, Vec<String>) {
        let stat = |file: &str| Some((195, file.trim_start_matches("/dev/nvidia").parse().ok()?));
        let list = |known: &Inventory| GresList::from_text(gres, "", "n1", &stat, known).map(Some);
        let numbering = Numbering::new(whole(inventory.clone()), constrained, None, list);
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let mut problems = Vec::new();
        let record = JobRecord::of("7".into(), "n1".into(), env, &numbering, &mut problems);
        (record, problems.into_iter().map(|problem| problem.line).collect())
    }

    fn ranks(record: &JobRecord) -> Vec<(Option<u32>, usize)> {
        record.cards.iter().map(|card| (card.position, card.rank)).collect()
    }

    #[test]
    fn a_position_is_what_gres_conf_says_where_devices_are_constrained() {
        let (record, problems) = resolved(&[("SLURM_JOB_GPUS", "0,5")], true);
        assert_eq!(ranks(&record), [(Some(0), 6), (Some(5), 1)]);
        assert!(problems.is_empty());
    }

    #[test]
    fn a_position_is_the_neighbours_rank_where_they_are_not() {
        let (record, _) = resolved(&[("SLURM_JOB_GPUS", "0,5")], false);
        assert_eq!(ranks(&record), [(Some(0), 0), (Some(5), 5)]);
    }

    #[test]
    fn fc_04_under_autodetect_a_position_is_the_rank_and_not_the_minor() {
        for constrained in [true, false] {
            let env = [("SLURM_JOB_GPUS", "4")];
            let (record, problems) = resolved_on(&inv8p(), "AutoDetect=nvml", &env, constrained);
            assert_eq!(ranks(&record), [(Some(4), 4)]);
            assert!(problems.is_empty());
        }
    }

    #[test]
    fn fc_41_positions_behind_a_lost_card_do_not_shift() {
        let mut left = inv8p().cards().to_vec();
        let lost = left.remove(2);
        assert_eq!(lost.minor, Minor(6));
        let gres = "Name=gpu File=/dev/nvidia[0-7]";
        let env = [("SLURM_JOB_GPUS", "3,6,7")];
        let (record, problems) = resolved_on(&Inventory::new(left), gres, &env, true);
        let minors: Vec<Minor> = record.cards.iter().map(|card| card.minor).collect();
        assert_eq!((minors, record.unknown), (vec![Minor(3), Minor(7)], vec![6]));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("job 7: Slurm's position 6 names no card"));
    }

    #[test]
    fn full_uuids_are_believed_and_a_difference_is_said() {
        let uuid = |rank| format!("GPU-00000000-0008-4000-8000-00000000000{rank}");
        let both = format!("{},{}", uuid(6), uuid(2));
        let env = [("SLURM_JOB_GPUS", "0,5"), ("CUDA_VISIBLE_DEVICES", both.as_str())];
        let (record, problems) = resolved(&env, true);
        assert_eq!(ranks(&record), [(Some(0), 6), (None, 2)]);
        assert_eq!(record.source, Some("CUDA_VISIBLE_DEVICES"));
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].starts_with(&format!("job 7: {} in CUDA_VISIBLE_DEVICES is not", uuid(2)))
        );
    }

    #[test]
    fn numbers_in_cuda_visible_devices_are_not_names() {
        let env = [("SLURM_JOB_GPUS", "0"), ("CUDA_VISIBLE_DEVICES", "3")];
        assert_eq!(ranks(&resolved(&env, true).0), [(Some(0), 6)]);
    }

    #[test]
    fn a_position_without_a_card_is_listed_and_said() {
        let (record, problems) = resolved(&[("SLURM_JOB_GPUS", "1,8")], true);
        assert_eq!((ranks(&record), record.unknown), (vec![(Some(1), 7)], vec![8]));
        assert!(problems[0].starts_with("job 7: Slurm's position 8 names no card"));
    }

    /// The record of a job that holds position 5, where gres.conf is broken.
    fn without_list(env: &[(&str, &str)]) -> (JobRecord, Vec<Problem>) {
        let list = |known: &Inventory| {
            GresList::from_text("Name=gpu oops", "", "n1", &|_| None, known).map(Some)
        };
        let numbering = Numbering::new(whole(inv8p()), true, Some(8), list);
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let mut problems = Vec::new();
        let record = JobRecord::of("7".into(), "n1".into(), env, &numbering, &mut problems);
        (record, problems)
    }

    #[test]
    fn fc_41_a_card_that_cannot_be_told_is_unknown() {
        let (record, problems) = without_list(&[("SLURM_JOB_GPUS", "5")]);
        assert_eq!((ranks(&record), record.unknown), (vec![], vec![5]));
        assert!(problems[0].line.starts_with("job 7: Slurm's position 5 may be any card"));
        assert_eq!(problems[0].kind, Drain::Other);
    }

    #[test]
    fn uuids_need_no_list() {
        let uuid = "GPU-00000000-0008-4000-8000-000000000006";
        let env = [("SLURM_JOB_GPUS", "5"), ("CUDA_VISIBLE_DEVICES", uuid)];
        let (record, problems) = without_list(&env);
        assert_eq!(ranks(&record), [(None, 6)]);
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn a_list_that_is_none_is_said() {
        let (record, problems) = resolved(&[("SLURM_JOB_GPUS", "0-3")], true);
        assert!(record.cards.is_empty() && record.source.is_none());
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("job 7: SLURM_JOB_GPUS is '0-3', no list of numbers"));
        let uuid = "GPU-00000000-0008-4000-8000-000000000006";
        let named = [("SLURM_JOB_GPUS", "0-3"), ("CUDA_VISIBLE_DEVICES", uuid)];
        assert_eq!(ranks(&resolved(&named, true).0), [(None, 6)]);
        assert!(resolved(&[("SLURM_JOB_GPUS", "")], true).1.is_empty());
    }

    #[test]
    fn a_job_without_gpus_has_no_cards() {
        let (record, problems) = resolved(&[], true);
        assert!(record.cards.is_empty() && record.source.is_none() && problems.is_empty());
    }
}
