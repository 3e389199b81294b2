using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;

namespace Mqinfer
{
    /// <summary>All watches of one link: those of one model share a subscription.</summary>
    internal sealed class Watches
    {
        private readonly object gate = new object();
        private readonly Link link;
        private readonly Topics topics;
        private readonly Dictionary<string, Shared> byFilter = new Dictionary<string, Shared>();
        private bool isClosed;

        public Watches(Link link, Topics topics)
        {
            this.link = link;
            this.topics = topics;
        }

        /// <summary>Begin to receive the results of a model.</summary>
        public async Task<Watch> Open(string model, int buffer, Limits limits)
        {
            string filter = topics.ResultsOfModel(model);
            var watch = new Watch(buffer, limits, topics, closed => Forget(filter, closed));
            Shared shared;
            lock (gate)
            {
                if (isClosed) throw new CancelledException("the client was closed");
                if (!byFilter.TryGetValue(filter, out shared)) byFilter[filter] = shared = new Shared();
                shared.Watches.Add(watch);
                if (shared.Subscribed == null) shared.Subscribed = link.Subscribe(filter, 0, message => Deliver(shared, message));
            }
            try
            {
                await shared.Subscribed.ConfigureAwait(false);
                return watch;
            }
            catch
            {
                watch.Dispose();
                throw;
            }
        }

        public void Close()
        {
            Watch[] all;
            lock (gate)
            {
                isClosed = true;
                all = byFilter.Values.SelectMany(each => each.Watches).ToArray();
            }
            foreach (Watch each in all) each.Dispose();
        }

        private void Deliver(Shared shared, Incoming message)
        {
            Watch[] all;
            lock (gate) all = shared.Watches.ToArray();
            foreach (Watch each in all) each.Receive(message);
        }

        private void Forget(string filter, Watch watch)
        {
            lock (gate)
            {
                if (!byFilter.TryGetValue(filter, out Shared shared) || !shared.Watches.Remove(watch) || shared.Watches.Count > 0) return;
                byFilter.Remove(filter);
                link.Unsubscribe(filter);
            }
        }

        private sealed class Shared
        {
            public List<Watch> Watches { get; } = new List<Watch>();

            public Task Subscribed { get; set; }
        }
    }
}
