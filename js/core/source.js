// Fetches the payload of each layer for a head view, and the labels of the heads.

export class LayerSource {
  /**
   * @param {string} address URL prefix of the layers; "" without a server
   * @param {((layer: number) => Promise<Uint8Array>) | undefined} fetchLayer function that returns a layer that the
   * page contains
   */
  constructor(address, fetchLayer) {
    this.urlPrefix = address;
    this.fetchLayer = fetchLayer;
  }

  /** Returns the payload of a layer, or null if it is unavailable or not ready. @param {number} layer */
  async getLayer(layer) {
    if (this.fetchLayer) return this.fetchLayer(layer);
    const response = await this.request(String(layer));
    return response ? new Uint8Array(await response.arrayBuffer()) : null;
  }

  /** Returns the labels of the heads, [layer][head]; empty if unavailable. @returns {Promise<string[][]>} */
  async getLabels() {
    const response = this.urlPrefix ? await this.request("labels") : null;
    return response ? response.json() : [];
  }

  /** @param {string} path */
  async request(path) {
    const response = await fetch(`${this.urlPrefix}${path}`).catch(() => null);
    return response?.status === 200 ? response : null; // status 204 means that the labels are not ready
  }
}
