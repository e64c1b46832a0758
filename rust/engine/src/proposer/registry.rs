//! Which kinds of drafters there are: a name, which is the architecture that files of the kind state, and how one is loaded.

use std::sync::Arc;

use super::{Drafter, dflash, eagle3, model};
use crate::error::{Error, Result};
use crate::gguf::GgufFile;
use crate::model::keys::file_name;
use crate::model::{Model, supported};

/// Told of bytes done and bytes in all; false stops.
pub(super) type Progress<'p> = &'p mut (dyn FnMut(usize, usize) -> bool + Send);

/// Loads a drafter of one kind.
type Load = fn(&GgufFile, &Arc<Model>, Progress<'_>) -> Result<Arc<dyn Drafter>>;

/// A kind of drafter.
struct Kind {
    name: &'static str,
    load: Load,
}

/// All kinds whose files are nothing else, in the order in which errors list them. Files of models are drafters of kind `model`.
const KINDS: &[Kind] =
    &[Kind { name: eagle3::KIND, load: eagle3::load }, Kind { name: dflash::KIND, load: dflash::load }];

/// The architectures that only drafters have.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// Loads a drafter for `target`. `progress` gets bytes done and bytes in all; false stops the loading.
///
/// # Errors
/// The file is of no known kind, is made for another model, is damaged, or memory or the disk failed.
pub fn attach(file: &GgufFile, target: &Arc<Model>, progress: Progress<'_>) -> Result<Arc<dyn Drafter>> {
    let found = file.metadata().need_str("general.architecture")?;
    match KINDS.iter().find(|kind| kind.name == found) {
        Some(kind) => (kind.load)(file, target, progress),
        None if supported().any(|arch| arch == found) => model::load(file, target, progress),
        None => {
            let known = kinds().chain(supported()).collect::<Vec<_>>().join(", ");
            Err(Error::NoDrafter { file: file_name(file), found: found.to_owned(), known })
        }
    }
}
