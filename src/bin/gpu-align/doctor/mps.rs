//! What an MPS control daemon does to this environment's list.

use gpu_align::device::clip;

use super::Patient;
use super::findings::{Finding, Level, finding};
use crate::inside::mps::{FOLDER, Seen};

pub fn finding_of(patient: &Patient) -> Option<Finding> {
    let env = &patient.scene.env;
    let folder = env.get(FOLDER).map(|folder| format!("{FOLDER}={}", clip(folder)));
    let runs = match &patient.mps {
        Seen::Runs { .. } => {
            format!("programs run through {}", patient.mps.says().unwrap_or_default())
        }
        Seen::Nothing => {
            let what = format!("{}, and no MPS daemon runs there", folder?);
            let todo = "start nvidia-cuda-mps-control -d there, or unset the variable";
            return Some(finding(Level::Note, "mps", what, "CUDA goes on without MPS", todo));
        }
        Seen::NotLooked(_) if folder.is_none() => return None,
        Seen::NotLooked(_) => "programs run through an MPS daemon".into(),
    };
    let what = folder.map_or_else(|| runs.clone(), |folder| format!("{folder}: {runs}"));
    Some(match env.lists_indices() {
        true => finding(
            Level::Warning,
            "mps",
            format!("{what}; cards are named by index here"),
            "an MPS daemon that was started with some cards counts them from 0 again",
            "name cards by UUID: --gpu-align=ids=uuid",
        ),
        false => finding(Level::Note, "mps", what, "", ""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::patient;
    use crate::inside::mps::StartedWith;
    use crate::inside::scene::VISIBLE;
    use crate::inside::simulated::{node, scene};

    #[test]
    fn fc_37_a_daemon_that_was_started_with_some_cards_is_named_with_them() {
        let say = |seen: Seen, pairs: &[(&str, &str)]| {
            let mut patient = patient(scene(&node("tidy4"), &[2, 3], pairs));
            patient.mps = seen;
            finding_of(&patient).map(|finding| (finding.level, finding.what))
        };
        let narrowed = Seen::Runs { pid: 77, started_with: StartedWith::List("2,3".into()) };
        let (level, what) = say(narrowed.clone(), &[(VISIBLE, "2,3")]).unwrap();
        assert_eq!(level, Level::Warning);
        assert_eq!(
            what,
            "programs run through the MPS daemon with pid 77, started with \
             CUDA_VISIBLE_DEVICES=2,3; cards are named by index here"
        );
        let uuid = "GPU-00000000-0004-4000-8000-000000000002";
        assert_eq!(say(narrowed, &[(VISIBLE, uuid)]).unwrap().0, Level::Note);
        assert_eq!(say(Seen::Nothing, &[(VISIBLE, "0")]), None);
        assert_eq!(say(Seen::NotLooked("why".into()), &[(VISIBLE, "0")]), None);
        let (level, what) = say(Seen::Nothing, &[(FOLDER, "/tmp/mps")]).unwrap();
        assert_eq!(level, Level::Note);
        assert!(what.ends_with("=/tmp/mps, and no MPS daemon runs there"), "{what}");
    }
}
