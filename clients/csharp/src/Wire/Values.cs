using System.Collections.Generic;
using System.Linq;

namespace Mqinfer
{
    // What headers and states are made of: null, bool, long, ulong (above 2^63 - 1), double, string, Foreign, List<object>, Map.

    /// <summary>A map whose keys are strings, in their order.</summary>
    internal sealed class Map : List<KeyValuePair<string, object>>
    {
        public void Add(string key, object value) => Add(new KeyValuePair<string, object>(key, value));
    }

    /// <summary>A value that no field may have: binary, an extension type.</summary>
    internal sealed class Foreign
    {
        public static readonly Foreign Value = new Foreign();
    }

    internal static class Nesting
    {
        /// <summary>Maps and arrays that may lie within each other, the outermost included.</summary>
        public const int Most = 100;
    }

    internal static class Text
    {
        private const int MostShown = 80;

        /// <summary>UTF-8 that refuses what is none.</summary>
        public static readonly System.Text.Encoding Utf8 = new System.Text.UTF8Encoding(false, true);

        /// <summary>Return text of a stranger for a message: not too long, and without control characters.</summary>
        public static string Shown(string text) =>
            "'" + string.Concat(text.Take(MostShown).Select(each => char.IsControl(each) ? '?' : each)) + "'";
    }
}
