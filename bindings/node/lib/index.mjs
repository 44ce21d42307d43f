import trunkline from './index.js';

export const { Client, Channel, Tunnel, Connection, SFTP, configure, connect, utils } = trunkline;
export default trunkline;
