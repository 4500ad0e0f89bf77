//! Tubes by number and by name.

use std::collections::BTreeSet;
use std::ops::Index;

use hashbrown::HashMap;

use crate::tube::TubeName;

use super::tubes::Tube;

/// All tubes. Numbers stay small and are reused, since stores put them into keys.
#[derive(Debug, Default)]
pub(super) struct Registry {
    tubes: Vec<Option<Tube>>,
    by_name: HashMap<TubeName, u32>,
    /// Unused numbers below the length.
    free: BTreeSet<u32>,
}

impl Registry {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The lowest unused number.
    pub fn free_number(&self) -> u32 {
        self.free.first().copied().unwrap_or(self.tubes.len() as u32)
    }

    pub fn number(&self, name: &TubeName) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub fn get(&self, number: u32) -> Option<&Tube> {
        self.tubes.get(number as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Tube> {
        self.tubes.get_mut(number as usize)?.as_mut()
    }

    pub fn insert(&mut self, number: u32, tube: Tube) {
        while self.tubes.len() <= number as usize {
            self.free.insert(self.tubes.len() as u32);
            self.tubes.push(None);
        }
        self.free.remove(&number);
        self.by_name.insert(tube.name.clone(), number);
        self.tubes[number as usize] = Some(tube);
    }

    pub fn remove(&mut self, number: u32) -> Option<Tube> {
        let tube = self.tubes.get_mut(number as usize)?.take()?;
        self.by_name.remove(&tube.name);
        self.free.insert(number);
        Some(tube)
    }

    /// Renames a tube to an unused name.
    pub fn rename(&mut self, number: u32, name: TubeName) {
        let Some(tube) = self.tubes.get_mut(number as usize).and_then(Option::as_mut) else {
            return;
        };
        self.by_name.remove(&tube.name);
        self.by_name.insert(name.clone(), number);
        tube.name = name;
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tube> {
        self.tubes.iter_mut().flatten()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Tube)> {
        (0..).zip(&self.tubes).filter_map(|(number, tube)| Some((number, tube.as_ref()?)))
    }
}

/// The tube of a number that was just looked up.
impl Index<u32> for Registry {
    type Output = Tube;

    fn index(&self, number: u32) -> &Tube {
        self.get(number).expect("every number in the registry has its tube")
    }
}
