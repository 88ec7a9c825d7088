//! Values that are set for all queues of a device at once, or for each.

/// A value for the queues of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerQueue<T> {
    /// The same for all.
    All(T),
    /// One for each, beginning with queue 0. Queues at the end that are left out have none.
    Each(Vec<T>),
}

impl<T> Default for PerQueue<T> {
    /// None for any.
    fn default() -> Self {
        PerQueue::Each(Vec::new())
    }
}

impl<T> PerQueue<T> {
    /// That of `queue`.
    pub fn get(&self, queue: u16) -> Option<&T> {
        match self {
            PerQueue::All(value) => Some(value),
            PerQueue::Each(values) => values.get(usize::from(queue)),
        }
    }

    /// All that there are, and the queue of each, if it is for one only.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Option<usize>, &T)> {
        let (all, each) = match self {
            PerQueue::All(value) => (Some(value), &[][..]),
            PerQueue::Each(values) => (None, &values[..]),
        };
        all.into_iter().map(|value| (None, value)).chain(each.iter().enumerate().map(|(at, v)| (Some(at), v)))
    }
}
