using System.Collections;
using System.Collections.Generic;

namespace Mqinfer
{
    /// <summary>
    /// Further parameters of a message or a tensor, in the order in which they travel. Values are <c>bool</c>, <c>long</c>
    /// (or <c>int</c>), <c>ulong</c> (when read: above 2^63 - 1), <c>double</c> and <c>string</c>.
    /// </summary>
    public sealed class Parameters : IEnumerable<KeyValuePair<string, object>>
    {
        private readonly List<KeyValuePair<string, object>> entries = new List<KeyValuePair<string, object>>();

        /// <summary>How many there are.</summary>
        public int Count => entries.Count;

        /// <summary>Return the value of a parameter; null where there is none.</summary>
        public object this[string key] => entries.Find(each => each.Key == key).Value;

        /// <summary>Append a parameter. What can't travel is refused when the message is made.</summary>
        public void Add(string key, object value) => entries.Add(new KeyValuePair<string, object>(key, value));

        /// <inheritdoc/>
        public IEnumerator<KeyValuePair<string, object>> GetEnumerator() => entries.GetEnumerator();

        IEnumerator IEnumerable.GetEnumerator() => entries.GetEnumerator();
    }
}
