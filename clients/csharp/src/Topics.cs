using System.Linq;
using System.Text.RegularExpressions;

namespace Mqinfer
{
    /// <summary>What a name is of; each has its rule.</summary>
    internal enum NameKind
    {
        Client,
        Worker,
        Model,
        Version,
        Request,
    }

    /// <summary>Names, and topics built from names: none with a wildcard, a slash or a NUL gets through.</summary>
    internal sealed class Topics
    {
        private const int MostRootBytes = 256;
        private const string Own = "1 to 64 lower-case letters, digits, '_', '.' or '-', beginning with a letter or digit";
        private const string Free = "1 to 64 letters, digits, '_', '.' or '-'";
        private static readonly Regex OwnRule = new Regex(@"\A[a-z0-9][a-z0-9_.-]{0,63}\z");
        private static readonly Regex ModelRule = new Regex(@"\A(?!control\z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\z");
        private static readonly Regex VersionRule = new Regex(@"\A(0|[1-9][0-9]{0,18})\z");
        private static readonly Regex RequestRule = new Regex(@"\A[A-Za-z0-9_.-]{1,64}\z");
        private static readonly Regex RootRule = new Regex(@"\A[^/+#\x00-\x1f\x7f$][^/+#\x00-\x1f\x7f]*(/[^/+#\x00-\x1f\x7f]+)*\z");
        private static readonly Regex[] Rules = { OwnRule, OwnRule, ModelRule, VersionRule, RequestRule };
        private static readonly string[] Words =
        {
            Own, Own, Free + ", beginning with a letter, a digit or '_', and not 'control'",
            "a decimal integer of at most 19 digits, such as 3", Free,
        };
        private readonly string root;

        /// <summary>Build topics below a root.</summary>
        /// <exception cref="BadTopicException">It breaks the rules.</exception>
        public Topics(string root)
        {
            if (!RootRule.IsMatch(root) || Text.Utf8.GetByteCount(root) > MostRootBytes)
                throw new BadTopicException(
                    "topic root " + Text.Shown(root) + " is wrong; expected levels joined by '/', none empty, without '+', '#' or " +
                    "control characters, not beginning with '$', at most 256 bytes, such as mqinfer/v1");
            this.root = root;
        }

        /// <summary>Filter for the states of all workers.</summary>
        public string WorkerStates => root + "/workers/+/state";

        public static bool IsName(NameKind kind, string name) => name != null && Rules[(int)kind].IsMatch(name);

        /// <summary>Return a name that follows the rule of its kind.</summary>
        /// <exception cref="BadTopicException">It does not.</exception>
        public static string Checked(NameKind kind, string name)
        {
            if (IsName(kind, name)) return name;
            throw new BadTopicException(
                kind.ToString().ToLowerInvariant() + " " + Text.Shown(name ?? "null") + " can't be used in a topic; expected " +
                Words[(int)kind]);
        }

        /// <summary>Return the shared channel of a model, or of one version of it where <paramref name="version"/> is not empty.</summary>
        public string Infer(string model, string version, string client)
        {
            string versions = version == "" ? "" : "/versions/" + Checked(NameKind.Version, version);
            return root + "/models/" + Checked(NameKind.Model, model) + versions + "/infer/" + client;
        }

        public string Cancel(string model, string client) => root + "/models/" + Checked(NameKind.Model, model) + "/cancel/" + client;

        /// <summary>Return the topic of one reply.</summary>
        public string Result(string model, string client, string request) =>
            root + "/results/" + Checked(NameKind.Model, model) + "/" + client + "/" + Checked(NameKind.Request, request);

        /// <summary>Return the filter for all replies to one client.</summary>
        public string ResultsOfClient(string client) => root + "/results/+/" + client + "/+";

        /// <summary>Return the filter for all replies of one model.</summary>
        public string ResultsOfModel(string model) => root + "/results/" + Checked(NameKind.Model, model) + "/+/+";

        /// <summary>Return model, client and request of a reply's topic; null for any other topic.</summary>
        public string[] ResultOf(string topic)
        {
            string[] levels = Below(topic);
            return levels.Length == 4 && levels[0] == "results" && IsName(NameKind.Model, levels[1]) &&
                IsName(NameKind.Client, levels[2]) && IsName(NameKind.Request, levels[3]) ? levels.Skip(1).ToArray() : null;
        }

        /// <summary>Return the worker of a state's topic; null for any other topic.</summary>
        public string WorkerOf(string topic)
        {
            string[] levels = Below(topic);
            return levels.Length == 3 && levels[0] == "workers" && levels[2] == "state" && IsName(NameKind.Worker, levels[1])
                ? levels[1] : null;
        }

        /// <summary>Return whether a topic matches a filter.</summary>
        public static bool Matches(string filter, string topic)
        {
            string[] parts = filter.Split('/'), levels = topic.Split('/');
            return parts.Length == levels.Length && parts.Zip(levels, (part, level) => part == "+" || part == level).All(each => each);
        }

        private string[] Below(string topic) =>
            topic.StartsWith(root + "/", System.StringComparison.Ordinal) ? topic.Substring(root.Length + 1).Split('/') : new string[0];
    }
}
