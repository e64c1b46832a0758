//! What a constraint is to decoding: which tokens may come next, along a draft; which must come; when the answer is complete.
//!
//! In: drafts and committed tokens. Out: [`Mask`]s to the sampler and to the output head, certain tokens to the speculator. The engine knows no grammar: the
//! crate `quoth-grammar` has the implementations, and tests have their own.
//!
//! - **C1** A constraint is a function of the committed tokens: `masks`, `valid_prefix` and `forced` leave it as it was. So what was guessed has no influence
//!   on what is allowed.
//! - **C2** Mask i stands after the first i tokens of the draft, so each row is sampled under the mask that plain decoding would use there.
//! - **C3** A token that a mask does not allow is never committed. Where only one token is allowed, it is committed whatever the row says, and a draw counts
//!   as if it had been sampled.
//! - **C4** Masks are computed by a thread of the [`Masker`], beside the forward. The output head waits for them, and no other part does.
//! - **C5** Whatever happens to a step, the constraint comes back to its request, at the last committed token.
//!
//! Cost: that of the constraint; two messages between threads a step and sequence.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use crate::error::{Error, Result};

/// The tokens that may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mask {
    /// All.
    All,
    /// This one.
    One(u32),
    /// Those whose bit is set: bit `id % 32` of word `id / 32`. Tokens beyond the last word are not allowed.
    Set(Vec<u32>),
}

impl Mask {
    /// Whether a token may come next.
    pub fn allows(&self, token: u32) -> bool {
        match self {
            Mask::All => true,
            Mask::One(only) => *only == token,
            Mask::Set(words) => words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1),
        }
    }
}

/// Decides which tokens an answer may consist of.
pub trait Constraint: Send {
    /// Pushes a mask for each place along the draft: `draft.len() + 1`, fewer only where a token of the draft is not allowed or completes the answer.
    ///
    /// # Errors
    /// The grammar has become too large to follow, or no token is allowed.
    fn masks(&mut self, draft: &[u32], out: &mut Vec<Mask>) -> Result<()>;

    /// How many tokens of the draft are allowed, one after another.
    ///
    /// # Errors
    /// As `masks`.
    fn valid_prefix(&mut self, draft: &[u32]) -> Result<usize>;

    /// Pushes up to `max` tokens that come next in any case: each is the only one that its mask allows.
    ///
    /// # Errors
    /// As `masks`.
    fn forced(&mut self, max: usize, out: &mut Vec<u32>) -> Result<()>;

    /// Pushes up to `max` tokens that probably come behind what is forced: text that comes in any case, in the spelling that the vocabulary gives it, where
    /// the model may choose a token that goes on further. Each is allowed in its place.
    ///
    /// # Errors
    /// As `masks`.
    fn likely(&mut self, _max: usize, _out: &mut Vec<u32>) -> Result<()> {
        Ok(())
    }

    /// Takes a committed token. Gives whether the answer is complete: nothing can follow.
    ///
    /// # Errors
    /// The token is not allowed, or as `masks`.
    fn commit(&mut self, token: u32) -> Result<bool>;

    /// An independent constraint at the same place.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl std::fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

/// Bytes of the thread's stack: grammars may nest.
const STACK: usize = 16 << 20;

/// A constraint with the masks that were asked of it.
struct Job {
    constraint: Box<dyn Constraint>,
    draft: Vec<u32>,
    masks: Result<Vec<Mask>>,
    ns: u64,
}

impl Job {
    fn run(&mut self) {
        let start = Instant::now();
        let mut masks = Vec::with_capacity(self.draft.len() + 1);
        let asked = catch_unwind(AssertUnwindSafe(|| self.constraint.masks(&self.draft, &mut masks)));
        self.masks = match asked {
            Ok(result) => result.map(|()| masks),
            Err(_) => Err(Error::Internal("a constraint panicked".into())),
        };
        self.ns = start.elapsed().as_nanos() as u64;
    }
}

/// Masks under way.
pub struct PendingMasks {
    reply: Receiver<Job>,
    done: OnceCell<Option<Job>>,
}

/// A constraint that is back, and its masks.
pub(crate) struct Masks {
    pub(crate) constraint: Box<dyn Constraint>,
    pub(crate) masks: Result<Vec<Mask>>,
    /// How long they took.
    pub(crate) ns: u64,
}

impl PendingMasks {
    fn job(&self) -> Option<&Job> {
        self.done.get_or_init(|| self.reply.recv().ok()).as_ref()
    }

    /// Waits for the masks. Empty if there was an error, which [`PendingMasks::take`] gives.
    pub(crate) fn wait(&self) -> &[Mask] {
        self.job().and_then(|job| job.masks.as_ref().ok()).map_or(&[], Vec::as_slice)
    }

    /// Waits for the constraint. `None` if the thread is gone.
    pub(crate) fn take(self) -> Option<Masks> {
        self.job();
        self.done.into_inner().flatten().map(|job| Masks { constraint: job.constraint, masks: job.masks, ns: job.ns })
    }
}

impl std::fmt::Debug for PendingMasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingMasks")
    }
}

/// Computes masks in a thread of its own, which starts with the first question.
#[derive(Default)]
pub(crate) struct Masker {
    thread: Option<Sender<(Job, Sender<Job>)>>,
}

impl Masker {
    /// Asks for the masks along a draft.
    pub(crate) fn ask(&mut self, constraint: Box<dyn Constraint>, draft: Vec<u32>) -> PendingMasks {
        let (sender, reply) = channel();
        let mut question = (Job { constraint, draft, masks: Ok(Vec::new()), ns: 0 }, sender);
        if self.thread.is_none() {
            self.thread = Self::start();
        }
        if let Some(thread) = &self.thread {
            match thread.send(question) {
                Ok(()) => return PendingMasks { reply, done: OnceCell::new() },
                Err(refused) => question = refused.0,
            }
        }
        // Without a thread the masks are computed here.
        let (mut job, _) = question;
        job.run();
        PendingMasks { reply, done: OnceCell::from(Some(job)) }
    }

    fn start() -> Option<Sender<(Job, Sender<Job>)>> {
        let (sender, questions) = channel::<(Job, Sender<Job>)>();
        let work = move || {
            for (mut job, reply) in questions {
                job.run();
                // A step that failed may not wait for its masks; then the constraint ends here.
                let _ = reply.send(job);
            }
        };
        std::thread::Builder::new().name("quoth-masks".into()).stack_size(STACK).spawn(work).ok().map(|_| sender)
    }
}
