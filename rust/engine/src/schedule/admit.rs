//! Which waiting task is next: a function from the places of all that wait to one of them.
//!
//! In: the waiting tasks in the order of submission. Out: the number of one, to the scheduler, which admits it or, if it does not fit, waits with it.
//!
//! - **W1** First come, first served among equal priorities; a greater priority goes first.
//! - **W2** Waiting is bounded: a task that [`MAX_OVERTAKEN`] later ones have overtaken goes before all others.
//!
//! Cost: one pass.

/// What a policy knows of a waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Greater is sooner.
    pub priority: i32,
    /// Later tasks that were admitted before it.
    pub overtaken: u32,
}

/// A policy: of the waiting tasks, first submitted first, the number of the next one; `None` stands for tasks that cannot begin yet.
pub type Admission = fn(&[Option<Place>]) -> Option<usize>;

/// Later tasks that may overtake one.
pub const MAX_OVERTAKEN: u32 = 32;

/// The greatest priority, then the earliest (W1, W2).
pub fn by_priority(places: &[Option<Place>]) -> Option<usize> {
    let rank = |place: &Place| (place.overtaken >= MAX_OVERTAKEN, place.priority);
    let ready = places.iter().enumerate().filter_map(|(i, place)| Some((i, rank(place.as_ref()?))));
    // `max_by_key` takes the last of equals: the earliest, from behind.
    ready.rev().max_by_key(|(_, rank)| *rank).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(priority: i32, overtaken: u32) -> Option<Place> {
        Some(Place { priority, overtaken })
    }

    #[test]
    fn priorities_go_first_then_the_earliest_and_no_task_waits_without_end() {
        assert_eq!(by_priority(&[]), None);
        assert_eq!(by_priority(&[None, None]), None);
        assert_eq!(by_priority(&[place(0, 0), place(0, 0)]), Some(0));
        assert_eq!(by_priority(&[place(0, 0), place(1, 0), place(1, 0)]), Some(1));
        assert_eq!(by_priority(&[None, place(-1, 0), place(-1, 0)]), Some(1));
        assert_eq!(by_priority(&[place(0, MAX_OVERTAKEN), place(9, 0)]), Some(0));
        assert_eq!(by_priority(&[place(0, MAX_OVERTAKEN), place(9, MAX_OVERTAKEN)]), Some(1));
    }
}
